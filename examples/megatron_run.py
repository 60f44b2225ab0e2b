"""Megatron-Core's training loop in a few lines: what examples/megatron_gpt.py measures."""

import math

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, distributed, optimizer, parallel_state
from megatron.core.distributed import DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from tqdm import tqdm

from gpt import VOCABULARY
from narrowcast import megatron
from text import windows
from train import timed

CHECKPOINT = {"distrib_optim_sharding_type": "fully_reshardable"}


class Training:
    """A model, its optimizer and what they measure. `format` None: Megatron's own layers, DDP and
    optimizer, in bfloat16.
    """

    def __init__(self, args, format):
        self.args, self.name = args, format or "bf16"
        torch.manual_seed(args.seed)
        model_parallel_cuda_manual_seed(args.seed)
        self.config = TransformerConfig(
            num_layers=args.layers,
            hidden_size=args.width,
            num_attention_heads=max(args.tp, args.width // 32),
            tensor_model_parallel_size=args.tp,
            use_cpu_initialization=True,  # the same for any number of ranks
            add_bias_linear=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            bf16=True,
            params_dtype=torch.bfloat16,
            pipeline_dtype=torch.bfloat16,
        )
        spec, parallel, optimizers = get_gpt_layer_local_spec(), distributed, optimizer
        if format is not None:
            spec = megatron.get_gpt_layer_spec(format, args.matmul)
            parallel = optimizers = megatron
        self.gpt = GPTModel(self.config, spec, VOCABULARY, args.time).cuda()
        self.model = parallel.DistributedDataParallel(
            self.config,
            DistributedDataParallelConfig(
                use_distributed_optimizer=True,
                grad_reduce_in_fp32=True,
                overlap_grad_reduce=args.overlap,
                overlap_param_gather=args.overlap,
                bucket_size=1_000_000,
            ),
            Float16Module(self.config, self.gpt),
        )
        self.optimizer = optimizers.get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=args.lr,
                min_lr=args.lr / 10,
                weight_decay=0.1,
                adam_beta2=0.95,
                clip_grad=1.0,
                bf16=True,
                params_dtype=torch.bfloat16,
                use_distributed_optimizer=True,
                overlap_param_gather=args.overlap,
            ),
            [self.model],
        )
        self.config.finalize_model_grads_func = finalize_model_grads
        self.config.grad_scale_func = self.optimizer.scale_loss
        self.scheduler = OptimizerParamScheduler(
            self.optimizer,
            init_lr=0.0,
            max_lr=args.lr,
            min_lr=args.lr / 10,
            lr_warmup_steps=max(1, args.steps // 10),
            lr_decay_steps=args.steps,
            lr_decay_style="linear",
            wd_incr_style="constant",
            wd_incr_steps=args.steps,
            start_wd=0.1,
            end_wd=0.1,
        )
        self.step, self.optimizer_ms = 0, []

    def run(self, text):
        """All steps; prints some of their losses and norms."""
        steps = range(self.step, self.args.steps)
        is_first = dist.get_rank() == 0
        bar = tqdm(steps, desc=self.name, disable=not is_first, mininterval=0.5)
        for step in bar:
            loss, norm = self.train_step(text, step)
            if step % max(1, self.args.steps // 10) == 0 and is_first:
                bar.write(f"{self.name} step {step}: {loss:.4f} bits per byte, norm {norm:.3f}")
        self.step = self.args.steps
        if self.args.overlap:
            self.model.disable_forward_pre_hook()  # gathers what the last step has made

    def train_step(self, text, step):
        """(bits per byte, gradient norm)"""
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        losses = self.forward(text, step, 1, forward_only=False)
        done = []
        self.optimizer_ms.append(
            timed(lambda: done.append(self.optimizer.step()), self.args.device)
        )
        self.scheduler.step(1)
        return losses, done[0][1]

    def forward(self, text, seed, microbatches, forward_only):
        """Mean bits per byte of windows, over data-parallel ranks, each of which takes its share of
        the batch in each microbatch.
        """
        random = torch.Generator().manual_seed(seed)
        rank = parallel_state.get_data_parallel_rank()
        ranks = parallel_state.get_data_parallel_world_size()
        batches = [
            windows(text, self.args.batch, self.args.time, random) for _ in range(microbatches)
        ]
        losses = get_forward_backward_func()(
            forward_step_func=_forward_step,
            data_iterator=(tuple(part[rank::ranks].cuda() for part in pair) for pair in batches),
            model=self.model,
            num_microbatches=microbatches,
            seq_length=self.args.time,
            micro_batch_size=self.args.batch // ranks,
            forward_only=forward_only,
        )
        loss = torch.stack([one["loss"] for one in losses]).mean()
        dist.all_reduce(loss, group=parallel_state.get_data_parallel_group())
        return loss.item() / ranks / math.log(2)

    def bytes_gathered(self):
        """A step, of parameters; none where no other data-parallel rank has any."""
        if parallel_state.get_data_parallel_world_size() == 1:
            return 0
        buffers = self.model.buffers
        plain = sum(one.param_data.nbytes for one in buffers if one.param_data is not None)
        packed = getattr(self.model, "packed_bytes", None)
        return plain + (packed() if packed else 0)

    def sharded(self, is_loading):
        model = self.gpt.sharded_state_dict(metadata=CHECKPOINT)
        state = self.optimizer.sharded_state_dict(model, is_loading, metadata=CHECKPOINT)
        return {"model": model, "optimizer": state, "scheduler": self.scheduler.state_dict()}

    def save(self, folder):
        if dist.get_rank() == 0:
            folder.mkdir(parents=True)
        dist.barrier()
        dist_checkpointing.save({**self.sharded(False), "step": self.step}, str(folder))

    def load(self, folder):
        """Of any numbers of ranks and any format."""
        loaded = dist_checkpointing.load(self.sharded(True), str(folder))
        self.gpt.load_state_dict(loaded["model"])
        self.optimizer.load_state_dict(loaded["optimizer"])
        self.scheduler.load_state_dict(loaded["scheduler"])
        self.step = loaded["step"]


def _forward_step(data, model):
    tokens, targets = next(data)
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    losses = model(tokens, positions, None, labels=targets)
    return losses, lambda losses: (losses.mean(), {"loss": losses.mean().detach().float()})
