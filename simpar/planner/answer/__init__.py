"""The answer of a search: candidates, alternatives to the winner, the reasons for it, and terminal output."""
