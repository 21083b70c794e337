"""What Redis does in one step: scripts in Lua. Each is about the entries of one stream that a group has not
acknowledged.

A message that waits for its next attempt belongs to the consumer `LATER`, and is in a sorted set by the time
when it is due. Should it be missing there, it is taken after a day.

A script that has claimed an entry may go on although the server is full.
"""

LATER = "inbox-later"
"""The consumer that has the messages that wait."""

CLAIM = """
local stream, due = KEYS[1], KEYS[2]
local group, me, lease, room, later = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local own, held = ARGV[6], {}
for place = 7, #ARGV do held[ARGV[place]] = true end
local DAY = 86400000
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found, gone = {}, {}

local function take(id, from)
    local pending = redis.call('XPENDING', stream, group, id, id, 1)
    if #pending == 0 or pending[1][2] ~= from then return end
    local entry = redis.call('XCLAIM', stream, group, me, 0, id)[1]
    if entry then
        table.insert(found, {id, entry[2], pending[1][4] + 1})
    else
        redis.call('XACK', stream, group, id)
        table.insert(gone, id)
    end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, room)) do
    redis.call('ZREM', due, id)
    take(id, later)
end
for _, about in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    local of = {}
    for place = 1, #about, 2 do of[about[place]] = about[place + 1] end
    local waits = of.name == later
    if waits and of.pending <= redis.call('ZCARD', due) then
        -- All are in the sorted set, and there can be very many.
    elseif of.pending > 0 and #found < room then
        local idle = waits and DAY or of.name == me and own or lease
        local most = room - #found + #ARGV - 6
        for _, each in ipairs(redis.call(
            'XPENDING', stream, group, 'IDLE', idle, '-', '+', most, of.name
        )) do
            local stays = held[each[1]] or waits and redis.call('ZSCORE', due, each[1])
            if not stays and #found < room then take(each[1], of.name) end
        end
    elseif of.pending == 0 and of.name ~= me and of.name ~= later and of.idle > DAY then
        redis.call('XGROUP', 'DELCONSUMER', stream, group, of.name)
    end
end
return {found, gone}
"""
"""KEYS: the stream, the sorted set. ARGV: group, consumer, lease in milliseconds, how many at most, `LATER`,
the lease for what this consumer has, and ids that are not taken. Takes what is due, and what consumers have
neither settled nor renewed within the lease. Returns two lists: id, fields and number of the delivery of
each; and the ids of entries that somebody has deleted meanwhile."""

SETTLE = """
local stream, due = KEYS[1], KEYS[2]
local group, me, later = ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local answers = {}
for place = 4, #ARGV, 4 do
    local what, id, delay, count = unpack(ARGV, place, place + 3)
    local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
    local is_ours = pending and pending[2] == me
    local answer = is_ours and 'held' or 'lost'
    if is_ours and what == 'done' then
        redis.call('XACK', stream, group, id)
    elseif is_ours and #redis.call('XCLAIM', stream, group, me, 0, id, 'JUSTID') == 0 then
        answer = 'gone'
    elseif is_ours and what == 'wait' then
        redis.call('ZADD', due, now + delay, id)
        redis.call('XCLAIM', stream, group, later, 0, id, 'RETRYCOUNT', count, 'JUSTID')
    end
    table.insert(answers, answer)
end
return answers
"""
"""KEYS: the stream, the sorted set. ARGV: group, consumer, `LATER`; then for each entry what to do, its id,
and two numbers. To renew its time; to acknowledge it (`done`); or to let it wait (`wait`): for so many
milliseconds, with this number of deliveries. Returns for each entry `held`; `lost`, and does nothing, if it
is another consumer's or nobody's; or `gone` if somebody has deleted it: then it is nobody's any more."""
HELD, LOST, GONE = b"held", b"lost", b"gone"
"""Its answers."""

TRIM = """
local function before(a, b)
    local am, as = string.match(a, '(%d+)-(%d+)')
    local bm, bs = string.match(b, '(%d+)-(%d+)')
    if am ~= bm then return tonumber(am) < tonumber(bm) end
    return tonumber(as) < tonumber(bs)
end

local lowest
for _, about in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local of = {}
    for place = 1, #about, 2 do of[about[place]] = about[place + 1] end
    local first = redis.call('XPENDING', KEYS[1], of.name)[2] or of['last-delivered-id']
    if not lowest or before(first, lowest) then lowest = first end
end
return lowest and redis.call('XTRIM', KEYS[1], 'MINID', lowest) or 0
"""
"""KEYS: the stream. Deletes the entries that all of its groups have acknowledged; returns how many."""

MOVE = """
if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then return 0 end
if redis.call('EXISTS', KEYS[2]) == 0 then return -1 end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 2))
redis.call('XDEL', KEYS[1], ARGV[1])
return 1
"""
"""KEYS: two streams. ARGV: the id of an entry of the first one, and names and values of fields. Deletes the
entry, and adds another one with these fields to the second stream. Returns 0 if there is no such entry, -1 if
there is no such stream."""
