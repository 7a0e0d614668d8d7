"""What controller, agent and ranks share; it travels with the agent."""
