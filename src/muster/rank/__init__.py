"""Code that runs inside a rank: it runs the script, reports progress and failures, and exits as python does."""
