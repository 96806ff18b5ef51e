"""A sweep from its plan to its choice: planning, the engine on Ray, the folder, the ending."""
