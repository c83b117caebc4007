"""Off-policy REINFORCE with importance weights: a policy writes 24 tokens for a context, the reward is the share of right tokens. The ratio exp(new - old) of the whole sequence is taken in float16 "to save memory".
FAULT: from step 130 on, a quarter of the batch are demonstrations whose old log-probabilities were recorded under the policy of step 0: new - old is 20 to 50 and exp overflows float16 (over 11).
Without Rangewatch: share of right tokens 0.13 to 0.77, loss near 0; at step 130 loss -inf, ratio inf, weights NaN behind the step (the script ends there).
Cause: forward_arithmetic. Step: 130. Right: overflow / float16 / clamp / exp. Wrong: attention mask, learning rate as the cause."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [129, 134], "place": None, "rank": None,
          "right": "(?i)overflow|float16|half|fp16|clamp|exp|float32|bfloat16", "wrong": ["attention mask", "[Ll]earning rate is too high"]}
import copy
import torch
from torch import nn
import rangewatch

torch.manual_seed(102); torch.set_num_threads(1)
L, V, C, B = 24, 8, 12, 64


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.context = nn.Embedding(C, 48)
        self.mix = nn.Sequential(nn.Linear(48, 96), nn.ELU())
        self.out = nn.Linear(96, L * V)

    def logp(self, c):
        return self.out(self.mix(self.context(c))).view(-1, L, V).log_softmax(-1)


def whole(logp, tokens):
    return logp.gather(2, tokens[..., None]).squeeze(2).sum(1)


answer = torch.randint(0, V, (C, L))
policy = Writer()
first = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.Adam(policy.parameters(), lr=8e-3)
handle = rangewatch.attach(policy, optimizer)
for step in range(170):
    c = torch.randint(0, C, (B,))
    with torch.no_grad():
        was = policy.logp(c)
        tokens = torch.distributions.Categorical(logits=was).sample()
        old = whole(was, tokens)
        if step >= 130:
            tokens[:B // 4] = answer[c[:B // 4]]
            old[:B // 4] = whole(first.logp(c[:B // 4]), tokens[:B // 4])
        hit = (tokens == answer[c]).float().mean(1)
        advantage = (hit - hit.mean()) / (hit.std() + 1e-4)
    logp = policy.logp(c)
    ratio = (whole(logp, tokens).half() - old.half()).exp().float()
    entropy = -(logp.exp() * logp).sum(-1).mean()
    loss = -(ratio * advantage).mean() - 0.01 * entropy
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 128 < step < 133:
        print(step, loss.item(), "hit", hit.mean().item(), "ratio", ratio.max().item(), flush=True)
    handle.log(loss=loss.item())
    if policy.out.weight.isnan().any():
        print("weights NaN after step", step)
        break
handle.detach()
