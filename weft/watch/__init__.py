"""A local page that shows runs as they train. It reads run folders only, and starts or stops trainings for those with a key."""
