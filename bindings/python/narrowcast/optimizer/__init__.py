"""One launch updates values and what an optimizer keeps, and makes the new bytes.

A step, arrow by arrow. Files are of this folder, or under bindings/ and runtime/:

    optimizer.step()                  fused.py: FusedOptimizer.step, with torch's wrapper around it
      |                                 only while a profiler or a hook looks (step_context.py)
      |  leaves early                 step_context.py: is_estimate, is_dcp_state_init make state
      |                                 and update nothing; is_skipped (GradScaler; with found_inf
      |                                 set, one reduction, and the host waits)
      v
    FusedOptimizer._prepare           reads and checks everything, changes no parameter
      |  options.check                options.py: lr, betas, ... of each group, as they are now
      |  ParamGroupsSnapshot.is_of    optimizer/param_groups_snapshot.cpp: are groups and state
      |                                 what the tables were made from?
      |    no: _rebuild               state.py: state of what has its first gradient;
      |                                 ranks.same once (a reduction, the host waits);
      |                                 launches.py: Tables, one UpdateTable a format and device
      |  Tables.prepare               launches.py; optimizer/update_table.hpp: prepare
      |                                 takes each gradient and each parameter's constants
      v                                 (runtime/optimizer/step.cpp: make_step)
    Tables.step                       launches.py: zeros what ranks reduce; casts what was written
      |                                 to, only where scaling is delayed
      v
    run_step                          launches.py: all that changes parameters
      |  UpdateTable.update           one launch a table: gradient, master and state are read
      |                                 once, the rule (runtime/rules/) moves them, and they are
      |                                 written with the codes and scales of the new
      |                                 master (runtime/launch/cpu_kernels.hpp, cuda_rows.cuh)
      |  Reduction.reduce             one all_reduce a process group; see below
      |  UpdateTable.finish           what waited for that
      v  UpdateTable.commit           counts the step; the bytes are those of the master

Launches: one a table, which has the parameters of one device, format (or none) and rounding, and
of one process group where amaxes are reduced (launches.py: Key). With a scale that spans the tensor
UpdateTable.update finds each shard's amax, Reduction.reduce makes the whole tensors' of these,
and UpdateTable.finish casts by these; with delayed scaling the reduced amax goes into the history.
Blocks that several ranks share are cast last (narrowcast.flat.fusing). docs/architecture.md has
a step's launches, reductions and waits.

Nothing here depends on which rule it is: narrowcast.optim has a class for each.
"""

from narrowcast.optimizer.fused import FusedOptimizer

__all__ = ["FusedOptimizer"]
