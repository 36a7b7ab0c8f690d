-- Add delayed jobs, unless they are ready or have an earlier entry. The given priority is stored in each case.
--
-- An entry may be early, never late, so this script only makes entries earlier. With mark = 1, an entry
-- that stays becomes 1 ms earlier: a settle.lua that saw the old score and would make the entry later
-- then fails. An early entry costs one refused claim.
--
-- KEYS[1]  zset    due: member -> score, see score.lua
-- ARGV[1]  string  prefix of the ready zsets' keys; the topic follows (same hash tag)
-- ARGV[2]  string  channel to notify when the earliest due time becomes earlier
-- ARGV[3]  0 or 1  mark
-- ARGV[4...]       quadruples: member, topic, due in ms, priority; at most 1,000
-- RETURN   int     how many had no entry before
local due, ready_prefix, channel, mark = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

local function head()
  local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  return #first > 0 and decode(first[2]) or nil
end

local before = head()
local added = 0
for i = 4, math.min(#ARGV, 4003), 4 do
  local member, ready, ms, priority = ARGV[i], ready_prefix .. ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local score = redis.call('ZSCORE', ready, member)
  local zset, to_score = ready, ready_score
  if not score then
    score = redis.call('ZSCORE', due, member)
    zset, to_score = due, delayed_score
  end
  if not score then
    redis.call('ZADD', due, delayed_score(ms, priority), member)
    added = added + 1
  else
    local at, had = decode(score)
    local new = mark == 1 and at - 1 or at
    if zset == due and ms < at then
      new = ms
    end
    if new ~= at or priority ~= had then
      redis.call('ZADD', zset, to_score(new, priority), member)
    end
  end
end
local after = head()
if after and (not before or after < before) then
  redis.call('PUBLISH', channel, string.format('%.0f', after))
end
return added
