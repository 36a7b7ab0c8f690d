-- Add delayed jobs, unless they are ready or have an earlier entry.
--
-- An entry may be early, never late, so this script only makes entries earlier. With mark = 1, an entry
-- that stays becomes 1 ms earlier: a settle.lua that saw the old score and would make the entry later
-- then fails. An early entry costs one refused claim.
--
-- KEYS[1]  zset    due: member -> ms
-- ARGV[1]  string  prefix of the ready zsets' keys; the topic follows (same hash tag)
-- ARGV[2]  string  channel to notify when the earliest due time becomes earlier
-- ARGV[3]  0 or 1  mark
-- ARGV[4...]       triples: member, topic, due in ms; at most 1,000
-- RETURN   int     how many had no entry before
local due, ready_prefix, channel, mark = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

local function head()
  local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  return tonumber(first[2])
end

local before = head()
local added = 0
for i = 4, math.min(#ARGV, 3003), 3 do
  local member, ready, ms = ARGV[i], ready_prefix .. ARGV[i + 1], tonumber(ARGV[i + 2])
  local zset = ready
  local score = tonumber(redis.call('ZSCORE', ready, member) or nil)
  if not score then
    zset = due
    score = tonumber(redis.call('ZSCORE', due, member) or nil)
  end
  if not score then
    redis.call('ZADD', due, ms, member)
    added = added + 1
  elseif zset == due and ms < score then
    redis.call('ZADD', due, 'LT', ms, member)
  elseif mark == 1 then
    redis.call('ZADD', zset, 'LT', score - 1, member)
  end
end
local after = head()
if after and (not before or after < before) then
  redis.call('PUBLISH', channel, string.format('%d', after))
end
return added
