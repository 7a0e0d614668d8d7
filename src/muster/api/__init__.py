"""Running jobs: options to RunSpec to job, for the command line, `muster.run` and `muster.launch`."""
