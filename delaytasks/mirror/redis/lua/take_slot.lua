-- Take or renew one of a topic's run slots. A slot is a lease: it expires if its worker is killed.
--
-- KEYS[1]  zset    slots: token -> ms when its lease ends
-- KEYS[2]  string  pending: see call_runner.lua; deleted when a runner comes that does not hold a slot yet
-- ARGV[1]  ms      now
-- ARGV[2]  ms      end of the lease
-- ARGV[3]  int     number of the topic's slots
-- ARGV[4]  string  token
-- RETURN   1 taken or renewed, 0 all slots are taken
local slots, pending = KEYS[1], KEYS[2]
local now, lease_until, limit, token = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

redis.call('ZREMRANGEBYSCORE', slots, '-inf', now)
if not redis.call('ZSCORE', slots, token) then
  redis.call('DEL', pending)
  if redis.call('ZCARD', slots) >= limit then
    return 0
  end
end
redis.call('ZADD', slots, lease_until, token)
return 1
