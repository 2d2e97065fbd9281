"""What sandboxes show to visitors: exposed ports, and the way from a preview URL to a service inside."""
