-- Extend a lock that the caller still holds.
--
-- KEYS[1]  string  lock: the holder's token
-- ARGV[1]  string  the caller's token
-- ARGV[2]  ms      until it expires, from now
-- RETURN   1 extended, 0 the caller does not hold it
local lock, token, ttl = KEYS[1], ARGV[1], ARGV[2]

if redis.call('GET', lock) ~= token then
  return 0
end
return redis.call('PEXPIRE', lock, ttl)
