"""Split-K: deep products with few tiles are split into parts of the depth, which run in parallel and are then added up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from hub.toolkit.affine import identity, variable
from hub.toolkit.builders import reduced, view, without
from hub.toolkit.sizes import is_static
from hub.toolkit.tensors import Product, Tensor

TILE = 64
"""Assumed rows and columns of the result per program."""
PART = 256
"""Least depth of a part that is worth a program."""
MAX_PARTS = 64


def in_parts(product: Product, programs: int, made: Callable[[Product], Tensor]) -> Tensor:
    """Return a product in equal parts if it would occupy at most half of `programs`; else the product itself.

    `made` returns the tensor that computes a product, or the products of parts. A second kernel adds up the parts, always
    in the same order; atomic additions would run in any order.
    """
    *lead, rows, columns = product.shape
    depth = product.left.shape[-1]
    if not all(map(is_static, (*product.shape, depth))):
        return made(product)
    tiles = math.prod(lead) * math.ceil(rows / TILE) * math.ceil(columns / TILE)
    most = min(MAX_PARTS, programs // max(tiles, 1), depth // PART)
    count = max((count for count in range(2, most + 1) if depth % count == 0), default=1)
    if count == 1 or tiles == 0:
        return made(product)
    part, dim = depth // count, len(lead)
    outer = identity((*lead, count))[:dim]
    inside = variable(dim, part) + variable(dim + 2), variable(dim, part) + variable(dim + 1)
    row, column = identity((*lead, count, rows, columns))[dim + 1 :]
    left = view(product.left, (*lead, count, rows, part), (*outer, row, inside[0]))
    right = view(product.right, (*lead, count, part, columns), (*outer, inside[1], column))
    parts = replace(product, shape=(*lead, count, rows, columns), left=left, right=right)
    return without(reduced("sum", made(parts), (dim,)), (dim,))
