"""The scripts of status-table mode on Redis: each is atomic, touches one key, and reads Redis' own clock."""

from dataclasses import dataclass
from hashlib import sha1


@dataclass(frozen=True, slots=True)
class RedisScript:
    """A script, and the digest by which Redis remembers it."""

    text: str
    sha: str


def _script(text: str) -> RedisScript:
    return RedisScript(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


# Lua writes large numbers with 14 digits; `whole` keeps all 16 digits of a time in microseconds.
_CLOCK = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function whole(number) return string.format('%.0f', number) end
"""

_STAMP = """
local time = redis.call('TIME')
local stamp = string.format('%d%06d', time[1], time[2])
"""
"""The clock as stored text, for scripts that only compare it: texts of one length compare as numbers do."""

ADD_OR_LOOK = _script(
    _STAMP
    + """
-- ARGV: lease in microseconds, milliseconds to keep the record, and of a new record claim, owner, digest
local found = redis.call('HGETALL', KEYS[1])
if #found > 0 then return {stamp, found} end
redis.call('HSET', KEYS[1], 'status', 'consuming', 'token', stamp,
    'lease_until', string.format('%.0f', stamp + ARGV[1]), 'attempts_started', 1, 'created_at', stamp,
    'claim', ARGV[3], 'owner', ARGV[4])
if ARGV[5] then redis.call('HSET', KEYS[1], 'digest', ARGV[5]) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return stamp
"""
)

LOOK = _script(
    _CLOCK
    + """
return {whole(now), redis.call('HGETALL', KEYS[1])}
"""
)

AGE = _script(
    """
-- ARGV: microseconds, milliseconds
for _, field in ipairs({'lease_until', 'created_at', 'updated_at'}) do
    local time = tonumber(redis.call('HGET', KEYS[1], field) or '')
    if time then redis.call('HSET', KEYS[1], field, string.format('%.0f', time - ARGV[1])) end
end
local left = redis.call('PTTL', KEYS[1])
if left >= 0 then redis.call('PEXPIRE', KEYS[1], string.format('%.0f', left - ARGV[2])) end
return 1
"""
)

COMPLETE = _script(
    _STAMP
    + """
-- The most frequent write, so it uses as few commands as possible. ARGV: token, milliseconds to keep the
-- record if its lease is over, result
local record = redis.call('HMGET', KEYS[1], 'token', 'status', 'attempts_finished', 'lease_until')
if record[1] ~= ARGV[1] or record[2] ~= 'consuming' then return 0 end
if record[4] < stamp then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
local finished = (record[3] or 0) + 1
if ARGV[3] then
    redis.call('HSET', KEYS[1], 'status', 'consumed', 'updated_at', stamp, 'lease_until', '',
        'attempts_finished', finished, 'result', ARGV[3])
else
    redis.call('HSET', KEYS[1], 'status', 'consumed', 'updated_at', stamp, 'lease_until', '',
        'attempts_finished', finished)
end
return 1
"""
)

WRITE = _script(
    _CLOCK
    + """
-- ARGV: token, statuses, the judged fields (if nobody may hold the record) or nothing, lease in microseconds
-- or nothing, milliseconds to keep the record, number to add to attempts started, to attempts finished,
-- whether the status changes, claims of 16 bytes that the record may have (or nothing), number of fields to
-- remove, their names, fields and values to write
local record = redis.call('HMGET', KEYS[1], 'token', 'status', 'lease_until', 'undos', 'pending_step',
    'claim')
if record[1] ~= ARGV[1] or not string.find(ARGV[2], ',' .. record[2] .. ',', 1, true) then return 0 end
if ARGV[3] ~= '' then
    local lease_until = tonumber(record[3] or '')
    if lease_until and lease_until > now then return 0 end
    if ARGV[3] ~= (record[4] or '0') .. ',' .. (record[5] or '') then return 0 end
end
local is_known = ARGV[9] == ''
for at = 1, #ARGV[9], 16 do is_known = is_known or string.sub(ARGV[9], at, at + 15) == record[6] end
if not is_known then return 0 end
if ARGV[8] == '1' then
    redis.call('HSET', KEYS[1], 'updated_at', whole(now))
    redis.call('HDEL', KEYS[1], 'lease_until')
end
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'lease_until', whole(now + ARGV[4])) end
if ARGV[6] ~= '0' then redis.call('HINCRBY', KEYS[1], 'attempts_started', ARGV[6]) end
if ARGV[7] ~= '0' then redis.call('HINCRBY', KEYS[1], 'attempts_finished', ARGV[7]) end
local first = 11 + ARGV[10]
if ARGV[10] ~= '0' then redis.call('HDEL', KEYS[1], unpack(ARGV, 11, first - 1)) end
if #ARGV >= first then redis.call('HSET', KEYS[1], unpack(ARGV, first)) end
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return 1
"""
)

DELETE = _script("""
local record = redis.call('HMGET', KEYS[1], 'token', 'status')
if record[1] ~= ARGV[1] or not string.find(ARGV[2], ',' .. record[2] .. ',', 1, true) then return 0 end
return redis.call('DEL', KEYS[1])
""")
