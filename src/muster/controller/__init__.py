"""The controller: connects the hosts, finds where ranks meet, starts them, watches them, and ends everything."""
