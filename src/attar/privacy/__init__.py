"""What an upload gives away."""
