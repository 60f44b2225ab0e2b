"""What torchtitan 0.2 imports for a job with narrowcast, on GPUs:

    torchrun --nproc-per-node 4 -m torchtitan.train --job.config_file llama3.toml \\
        --job.custom_config_module narrowcast.torchtitan.job_config \\
        --experimental.custom_import titan_job \\
        --model.converters narrowcast --narrowcast.format nvfp4

with examples/ on PYTHONPATH. For torchtitan 0.3: docs/libraries.md.
"""

import narrowcast.torchtitan

narrowcast.torchtitan.register("llama3")  # its optimizers are nc.FusedAdam
