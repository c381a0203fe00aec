//! Settings, read from the environment once (the README describes them).

use std::path::PathBuf;

use amdsim::{Coherence, Order};

use crate::target::Target;

#[derive(Debug)]
pub(crate) struct Settings {
    pub devices: Vec<DeviceSettings>,
    /// Operations run when they are enqueued. `HIPSIM_EAGER=1`
    pub eager: bool,
    /// Numbers of the devices that report to be part of a processor. `HIPSIM_INTEGRATED=0,2`
    pub integrated: Vec<usize>,
    /// A file that makes a device lost. `HIPSIM_LOST`
    pub lost: Option<PathBuf>,
    /// Every launch is reported. `HIPSIM_TRACE=1`
    pub trace: bool,
    /// Memory of the devices; the last value counts for all further devices. `HIPSIM_MEMORY_MB`
    pub memory_bytes: Vec<u64>,
}

#[derive(Debug)]
pub(crate) struct DeviceSettings {
    pub target: &'static Target,
    pub order: Order,
    /// The coherence of simulated code.
    pub coherence: Coherence,
}

const DEFAULT_TARGET: &str = "gfx1100";
const DEFAULT_MEMORY_MB: &str = "1024";

impl Settings {
    /// Reads the settings; `devices` replaces `HIPSIM_TARGET`.
    pub(crate) fn read(devices: Option<&str>) -> Result<Self, String> {
        Self::from_variables(devices, |name| std::env::var(name).ok())
    }

    fn from_variables(devices: Option<&str>, variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let flag = |name: &str| match variable(name).as_deref() {
            None | Some("" | "0") => Ok(false),
            Some("1") => Ok(true),
            Some(other) => Err(format!("{name}={other}: 0 or 1 is expected")),
        };
        let order = match variable("HIPSIM_ORDER") {
            None => Order::Up,
            Some(text) => order(&text).ok_or_else(|| format!("HIPSIM_ORDER={text}: up or down is expected"))?,
        };
        let devices = match devices {
            Some(devices) => devices.to_owned(),
            None => variable("HIPSIM_TARGET").unwrap_or_else(|| DEFAULT_TARGET.to_owned()),
        };
        let devices = devices.split(',').map(|entry| device(entry.trim(), order)).collect::<Result<Vec<_>, _>>()?;
        let memory = variable("HIPSIM_MEMORY_MB").unwrap_or_else(|| DEFAULT_MEMORY_MB.to_owned());
        let memory_bytes = memory.split(',').map(|number| {
            let number: Result<u64, _> = number.trim().parse();
            number.map(|mb| mb << 20).map_err(|_| format!("HIPSIM_MEMORY_MB={memory}: numbers are expected"))
        });
        let memory_bytes = memory_bytes.collect::<Result<_, String>>()?;
        let integrated = variable("HIPSIM_INTEGRATED").filter(|list| !list.is_empty());
        let integrated = integrated.iter().flat_map(|list| list.split(',')).map(|number| {
            let number = number.trim();
            number.parse().map_err(|_| format!("HIPSIM_INTEGRATED: {number:?}, a device's number is expected"))
        });
        let integrated = integrated.collect::<Result<_, String>>()?;
        let lost = variable("HIPSIM_LOST").map(PathBuf::from);
        let (eager, trace) = (flag("HIPSIM_EAGER")?, flag("HIPSIM_TRACE")?);
        Ok(Self { devices, eager, integrated, lost, trace, memory_bytes })
    }
}

/// Parses one entry of the list: a target, then `:up` or `:down` for an order other than the default, and `:weak` for
/// AMD's memory model. With the latter, workgroups see each other's stores as late as allowed.
fn device(entry: &str, default: Order) -> Result<DeviceSettings, String> {
    let problem = || format!("device {entry:?}: one of {}, with :up, :down, :weak, is expected", Target::names());
    let mut parts = entry.split(':');
    let target = parts.next().and_then(Target::find).ok_or_else(problem)?;
    let mut device = DeviceSettings { target, order: default, coherence: Coherence::Full };
    for part in parts {
        match order(part) {
            Some(order) => device.order = order,
            // Kernels compiled for the CPU use the CPU's own caches, which are coherent.
            None if part == "weak" && !target.is_cpu() => device.coherence = Coherence::Weak,
            None => return Err(problem()),
        }
    }
    Ok(device)
}

fn order(text: &str) -> Option<Order> {
    match text {
        "up" => Some(Order::Up),
        "down" => Some(Order::Down),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::from_variables(None, |name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn variables_are_read() {
        let settings = read(&[]).unwrap();
        assert_eq!(settings.devices.len(), 1);
        assert_eq!(settings.devices[0].target.name, "gfx1100");
        let settings =
            read(&[("HIPSIM_TARGET", "gfx942, cpu-wave64:up"), ("HIPSIM_ORDER", "down"), ("HIPSIM_EAGER", "1")]);
        let settings = settings.unwrap();
        assert!(settings.eager);
        assert_eq!(settings.memory_bytes, [1 << 30]);
        assert_eq!(read(&[("HIPSIM_MEMORY_MB", "1, 24")]).unwrap().memory_bytes, [1 << 20, 24 << 20]);
        let devices: Vec<_> = settings.devices.iter().map(|device| (device.target.name, device.order)).collect();
        assert_eq!(devices, [("gfx942", Order::Down), ("cpu-wave64", Order::Up)]);
        let settings = read(&[("HIPSIM_TARGET", "gfx90a:weak:down,gfx90a")]).unwrap();
        let devices: Vec<_> = settings.devices.iter().map(|device| (device.order, device.coherence)).collect();
        assert_eq!(devices, [(Order::Down, Coherence::Weak), (Order::Up, Coherence::Full)]);
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        for bad in [
            ("HIPSIM_TARGET", "gfx9999"),
            ("HIPSIM_TARGET", "gfx942:strong"),
            ("HIPSIM_TARGET", "cpu-wave32:weak"),
            ("HIPSIM_ORDER", "left"),
            ("HIPSIM_EAGER", "yes"),
            ("HIPSIM_MEMORY_MB", "1G"),
            ("HIPSIM_INTEGRATED", "one"),
        ] {
            let message = read(&[bad]).unwrap_err();
            assert!(message.contains(bad.1), "{message}");
        }
    }
}
