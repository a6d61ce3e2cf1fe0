"""The agent: a ReAct loop with one seam for stopping policies, and the reading of its turns."""
