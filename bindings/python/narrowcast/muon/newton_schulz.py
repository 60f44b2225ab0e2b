"""A matrix with the singular vectors of another one and singular values near 1, by a Newton-Schulz
iteration of the fifth degree (Jordan et al., 2024, "Muon: an optimizer for hidden layers").
"""

import torch


def orthogonalize(
    matrix: torch.Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> torch.Tensor:
    """Of a bfloat16 matrix [rows, columns], whose memory it uses: bfloat16, of the same shape.

    coefficients, steps, eps
        a, b, c of x <- a x + b x^3 + c x^5, on singular values; how often; the least norm

    Operations are those of torch.optim.Muon, in its order, so the bits are torch's.
    """
    a, b, c = coefficients
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x.div_(x.norm().clamp(min=eps))  # singular values of at most 1
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x


def cost(rows: int, columns: int) -> int:
    """Multiplications of one iteration."""
    less, more = sorted((rows, columns))
    return less * less * (2 * more + less)
