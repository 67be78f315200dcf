"""What runs when, and where: the queue in front of an engine, its calls, pools of members, and worker processes."""
