"""A PyTorch net of any kind -> a graph that attar can read without running its code."""
