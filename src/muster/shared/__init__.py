"""Code shared by controller, agent and ranks; it is sent to hosts with the agent."""
