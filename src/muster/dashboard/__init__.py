"""A local page that shows a job."""
