"""From tensors to groups that are computed in one nest of loops each: what code generators share."""
