mod sim;
mod simulator;
