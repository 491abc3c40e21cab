"""When a checkpoint is due: by steps, by time, and where the model is to be tried on other data."""

from __future__ import annotations

from dovetail.spec.run_keeping import RunSaving, RunValidation


class Due:
    """Looks from checkpoint to checkpoint; time is an argument."""

    def __init__(self, settings: RunSaving, validation: RunValidation | None, samples: int) -> None:
        """Look at an epoch of so many samples; what is tried on `validation` is kept."""
        self._settings, self._samples = settings, samples
        self._validation = validation if validation is not None and validation.is_wanted else None
        self._last_step, self._last_position = 0, 0
        self._last_s: float | None = None

    def is_due(self, step: int, position: int, now_s: float) -> bool:
        """Say whether one is; the first look says where the run begins."""
        if self._last_s is None:
            self.begun(step, position, now_s)
            return False
        if self._validation is not None:
            steps, epochs = self._validation.every_steps, self._validation.epochs
            if steps is not None and step // steps > self._last_step // steps:
                return True
            done, before = position // self._samples, self._last_position // self._samples
            if epochs is not None and done // epochs > before // epochs:
                return True
        every, every_s = self._settings.every_steps, self._settings.every_s
        return (every is not None and step - self._last_step >= every) or (
            every_s is not None and now_s - self._last_s >= every_s
        )

    def begun(self, step: int, position: int, now_s: float) -> None:
        """Count from here: a checkpoint of this step was begun."""
        self._last_step, self._last_position, self._last_s = step, position, now_s

    def restart(self) -> None:
        """Count from the next look on: the run went back."""
        self._last_s = None
