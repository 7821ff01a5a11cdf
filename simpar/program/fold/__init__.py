"""What behaves alike: symmetries of a layout, colour refinement, and process groups costed once for like places."""
