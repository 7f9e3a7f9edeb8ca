"""`hub`: captures a PyTorch model, lets every installed compiler bid for pieces of it, and runs the cheapest proven plan."""
