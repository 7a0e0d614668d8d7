"""What runs inside a rank: it becomes the script, reports how far it is and why it failed, and exits as python does."""
