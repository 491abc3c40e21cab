"""What is not known is estimated: work left from the loss, speed from the few sizes seen, each with an error bar."""
