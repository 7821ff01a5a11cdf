"""What exactly happens? The one intermediate representation and its reductions."""
