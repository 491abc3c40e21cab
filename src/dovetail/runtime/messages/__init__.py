"""Every message between the processes of a run.

The `generation` of a run goes up whenever work under way is thrown away: a server was lost, the coordinator came back,
a ring lost a member. Whoever gets a message of another generation refuses it.
"""

from __future__ import annotations

from dovetail.runtime.messages.compression import AskResidual, Residual, ResidualTold, Tuned
from dovetail.runtime.messages.masking import Agree, Agreed, MaskedPush, MaskKey
from dovetail.runtime.messages.membership import (
    Alive,
    Died,
    Failed,
    Hello,
    Leaves,
    Report,
    SaveNow,
    Status,
    Stop,
    WhoAreYou,
    WorkerStatus,
)
from dovetail.runtime.messages.parameters import (
    AddedUp,
    AddUp,
    Forgotten,
    Pull,
    Pulled,
    Push,
    Pushed,
    Refresh,
    Refreshed,
    Stale,
)
from dovetail.runtime.messages.ring import (
    Apply,
    Holds,
    InRing,
    JoinRing,
    Reduced,
    RingBroken,
    RingMeets,
    SaveDense,
    SumUp,
)
from dovetail.runtime.messages.senders import Senders
from dovetail.runtime.messages.serving import (
    Accepted,
    Adopt,
    Commit,
    Committed,
    Copied,
    Copy,
    CopyIs,
    CopyPart,
    CopyWanted,
    CutLog,
    Gone,
    Load,
    LogNote,
    Norm,
    NormIs,
    ReadCopy,
    Ready,
    Save,
    SaveBegun,
    Saved,
    SaveFailed,
    ServerStats,
    Waits,
)
from dovetail.runtime.messages.staging import Collect, Collected, Forward, Returned, Staff, StageSpans
from dovetail.runtime.messages.working import (
    Assign,
    Close,
    Done,
    Extend,
    GaveBack,
    GiveBack,
    More,
    RanOut,
    Recall,
    Reset,
    Span,
)

Membership = Hello | WhoAreYou | Alive | Stop | Leaves | Failed
Serving = Load | Adopt | Ready | Accepted | Norm | NormIs | Commit | Committed | ServerStats | Waits
Saving = Save | SaveBegun | Saved | SaveFailed | CutLog | Gone | LogNote
Copying = Copy | Copied | CopyWanted | CopyIs | ReadCopy | CopyPart
Working = Reset | Assign | More | RanOut | Extend | Close | Recall | GiveBack | GaveBack | Done
Rings = JoinRing | Holds | RingMeets | InRing | SumUp | Reduced | RingBroken | Apply | SaveDense
Watching = Died | Status | Report | SaveNow
Parameters = Pull | Pulled | Refresh | Refreshed | Push | Pushed | Forgotten | Stale | AddUp | AddedUp
Staging = Forward | Returned | Collect | Collected | Staff | StageSpans
Masking = Agree | Agreed | MaskedPush
Compression = AskResidual | Residual | ResidualTold | Tuned
Message = (
    Membership | Serving | Saving | Copying | Working | Rings | Watching | Parameters | Staging | Compression | Masking
)

__all__ = [
    "Accepted",
    "AddUp",
    "AddedUp",
    "Adopt",
    "Agree",
    "Agreed",
    "Alive",
    "Apply",
    "AskResidual",
    "Assign",
    "Close",
    "Collect",
    "Collected",
    "Commit",
    "Committed",
    "Copied",
    "Copy",
    "CopyIs",
    "CopyPart",
    "CopyWanted",
    "CutLog",
    "Died",
    "Done",
    "Extend",
    "Failed",
    "Forgotten",
    "Forward",
    "GaveBack",
    "GiveBack",
    "Gone",
    "Hello",
    "Holds",
    "InRing",
    "JoinRing",
    "Leaves",
    "Load",
    "LogNote",
    "MaskKey",
    "MaskedPush",
    "Message",
    "More",
    "Norm",
    "NormIs",
    "Pull",
    "Pulled",
    "Push",
    "Pushed",
    "RanOut",
    "ReadCopy",
    "Ready",
    "Recall",
    "Reduced",
    "Refresh",
    "Refreshed",
    "Report",
    "Reset",
    "Residual",
    "ResidualTold",
    "Returned",
    "RingBroken",
    "RingMeets",
    "Save",
    "SaveBegun",
    "SaveDense",
    "SaveFailed",
    "SaveNow",
    "Saved",
    "Senders",
    "ServerStats",
    "Span",
    "Staff",
    "StageSpans",
    "Stale",
    "Status",
    "Stop",
    "SumUp",
    "Tuned",
    "Waits",
    "WhoAreYou",
    "WorkerStatus",
]
