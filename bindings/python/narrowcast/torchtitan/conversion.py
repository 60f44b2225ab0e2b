"""What both series of torchtitan ask of a converter."""

from torch import nn

from narrowcast.conversion import convert


def convert_model(model: nn.Module, format: str, filter, parameters, products: str) -> nn.Module:
    """nc.convert with a configuration's options, of which an empty list is the default."""
    options = {"parameters": list(parameters) or None, "products": products}
    if filter:
        options["filter"] = list(filter)
    return convert(model, format, **options)


def refuse_tensor_parallelism(degree: int) -> None:
    """NotImplementedError: torchtitan applies tensor and data parallelism in one function, after
    the conversion, which would have to come between them.
    """
    if degree > 1:
        raise NotImplementedError(
            "torchtitan converts a model before it applies tensor parallelism, and narrowcast "
            f"converts parts of weights afterwards: set tensor_parallel_degree = 1, not {degree}, "
            "or call parallelize_module, nc.convert and fully_shard in a parallelize_fn of your own"
        )
