"""The one intermediate representation: Programs, integer flows, memory over time, and how they are built."""
