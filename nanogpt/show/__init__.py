"""Pictures: charts and traces, and the kit that pictures of mechanisms are drawn with."""
