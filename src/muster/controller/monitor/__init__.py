"""What is known of a job while it runs, and what it means: all pure, from samples to findings in words."""
