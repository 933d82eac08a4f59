"""Machines with meters: a powercap tree, hwmon chips, a driver of GPUs, and a clock that tests set forward."""

from types import SimpleNamespace


class Clock:
    """Time that passes when a test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def make_zone(powercap, name, label, *, joules=1000.0, end=262_144.0):
    """A zone of a processor, as Linux shows it."""
    zone = powercap / name
    zone.mkdir(parents=True)
    (zone / "name").write_text(f"{label}\n")
    (zone / "max_energy_range_uj").write_text(f"{round(end * 1e6)}\n")
    set_joules(zone, joules)
    return zone


def set_joules(zone, joules):
    """What the counter of a zone shows."""
    (zone / "energy_uj").write_text(f"{round(joules * 1e6)}\n")


def make_stat(folder, busy_ticks=0):
    """The machine's processor time; `/proc/stat` in ticks of 10 ms."""
    path = folder / "stat"
    path.write_text(f"cpu  {busy_ticks} 0 0 5000 0 0 0 0 0 0\ncpu0 0 0 0 0\n")
    return path


def make_rail(hwmon, chip, number, label, *, millivolts=5000, milliamperes=1000):
    """A rail of a board with its sensor."""
    folder = hwmon / chip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text("ina3221\n")
    (folder / f"in{number}_label").write_text(f"{label}\n")
    (folder / f"in{number}_input").write_text(f"{millivolts}\n")
    (folder / f"curr{number}_input").write_text(f"{milliamperes}\n")
    return folder


class FakeNvml:
    """As much of pynvml as is used."""

    class NVMLError(Exception):
        """What the driver says."""

    def __init__(self, *millijoules, processes=()):
        self.millijoules = list(millijoules)
        self.processes = list(processes)  # on every card
        self.broken = ""  # what the driver says instead of an answer

    def nvmlInit(self):
        self._answer()

    def nvmlDeviceGetCount(self):
        return len(self.millijoules)

    def nvmlDeviceGetHandleByIndex(self, gpu):
        return gpu

    def nvmlDeviceGetUUID(self, gpu):
        return f"GPU-{gpu:04d}"

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu):
        self._answer()
        return self.millijoules[gpu]

    def nvmlDeviceGetComputeRunningProcesses(self, gpu):
        return [SimpleNamespace(pid=pid) for pid in self.processes]

    def _answer(self):
        if self.broken:
            raise self.NVMLError(self.broken)


class SteppedNvml(FakeNvml):
    """Cards whose counters are updated in steps, on a machine where time passes only when something is done."""

    def __init__(self, interval, phases=(0.0,), idle_watts=80.0):
        super().__init__(*(0 for _ in phases))
        self.now = 100.0
        self._interval, self._phases, self._idle_watts = interval, phases, idle_watts
        self._joules = [0.0] * len(phases)
        self.is_stuck = False  # no counter is updated any more

    def spend(self, seconds, watts):
        """Let time pass, in which each card takes so many watts."""
        end = self.now + seconds
        for gpu, phase in enumerate(self._phases):
            updates = (end - phase) // self._interval
            if updates > (self.now - phase) // self._interval and not self.is_stuck:
                until_then = self._joules[gpu] + watts * (phase + updates * self._interval - self.now)
                self.millijoules[gpu] = round(1000 * until_then)
            self._joules[gpu] += watts * seconds
        self.now = end

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.spend(seconds, self._idle_watts)

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu):
        self.spend(1e-4, self._idle_watts)  # a reading takes some time
        return super().nvmlDeviceGetTotalEnergyConsumption(gpu)
