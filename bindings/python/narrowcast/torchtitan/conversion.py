"""What both series of torchtitan ask of a converter."""

from torch import nn

from narrowcast.conversion import convert


def convert_model(model: nn.Module, format: str, filter, parameters, products: str) -> nn.Module:
    """nc.convert with a configuration's options, of which an empty list is the default."""
    options = {"parameters": list(parameters) or None, "products": products}
    if filter:
        options["filter"] = list(filter)
    return convert(model, format, **options)
