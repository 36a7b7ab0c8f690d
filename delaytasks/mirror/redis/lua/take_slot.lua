-- Take or renew one of a topic's run slots. A slot is a lease: it expires if its worker is killed.
--
-- KEYS[1]  zset    slots: token -> ms when its lease ends
-- KEYS[2]  string  pending: see call_runner.lua; deleted if this runner answers the last message that was sent
-- ARGV[1]  ms      now
-- ARGV[2]  ms      end of the lease
-- ARGV[3]  int     number of the topic's slots
-- ARGV[4]  string  token
-- ARGV[5]  ms      when the message was sent that has started this runner; "" if it was woken. Then, and after an older
--                  message, the last one is still in the queue
-- RETURN   1 taken or renewed, 0 all slots are taken
local slots, pending = KEYS[1], KEYS[2]
local now, lease_until, limit, token, message = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])

redis.call('ZREMRANGEBYSCORE', slots, '-inf', now)
if not redis.call('ZSCORE', slots, token) then
  local sent = message and redis.call('GET', pending)
  if sent and message >= tonumber(string.match(sent, '^(%d+):') or 0) then
    redis.call('DEL', pending)
  end
  if redis.call('ZCARD', slots) >= limit then
    return 0
  end
end
redis.call('ZADD', slots, lease_until, token)
return 1
