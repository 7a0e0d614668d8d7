"""What runs inside a rank: the launcher that started it, the world it joins. Never imports the controller."""
