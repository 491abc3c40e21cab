"""A plan as other systems start it: manifests for KubeRay and SkyPilot, a Slurm script, a compose file."""
