"""What the author of a door imports. These names stay; the modules behind them may move.

docs/doors.md tells how a door is written.
"""

from rtmb.announcements import Announcements
from rtmb.auth import Credentials, User
from rtmb.broker import Broker
from rtmb.config import Settings, SettingsError, port_number
from rtmb.core.hub import Hub
from rtmb.core.message import Message
from rtmb.core.subjects import from_raw, is_pattern, is_subject, to_raw
from rtmb.core.subscriptions import Subscription
from rtmb.doors.listener import Listener
from rtmb.doors.outbox import Outbox
from rtmb.doors.session import LINGER, Roster, Session
from rtmb.interfaces import IAuthenticator, IClient, IDoor, IDoorService, ISubscriber

__all__ = [
    "LINGER",
    "Announcements",
    "Broker",
    "Credentials",
    "Hub",
    "IAuthenticator",
    "IClient",
    "IDoor",
    "IDoorService",
    "ISubscriber",
    "Listener",
    "Message",
    "Outbox",
    "Roster",
    "Session",
    "Settings",
    "SettingsError",
    "Subscription",
    "User",
    "from_raw",
    "is_pattern",
    "is_subject",
    "port_number",
    "to_raw",
]
