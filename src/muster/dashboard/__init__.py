"""A dashboard in the browser that shows the jobs of a user."""
