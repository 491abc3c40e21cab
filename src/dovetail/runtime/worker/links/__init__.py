"""A worker's links to servers: requests, in how many bits numbers travel, and the residual of error feedback."""
