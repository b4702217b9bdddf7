"""What people have (launch arguments, configuration files) read as a training plan and the shape of a model."""
