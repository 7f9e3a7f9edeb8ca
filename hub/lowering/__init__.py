"""From a cluster's operators to tensors that say how their elements come about: what code generators share."""
