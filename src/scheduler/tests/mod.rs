mod admission;
mod harness;
mod lifecycle;
mod preemption;
mod prop;
mod sim;
mod simulator;
