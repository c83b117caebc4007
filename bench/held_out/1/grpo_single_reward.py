"""GRPO on a toy arithmetic task: 8 completions a prompt, advantage (r - mean) / (std + 1e-4) over those whose verifier answered. FAULT at
step 110: for one prompt only 1 of 8 answered, std of a single value is NaN, and so are the advantage and the loss; logits are finite. At step 111 the sampler raises (NaN weights).
Report: huggingface/trl#5773 (nanstd of one reward is NaN and poisons the valid advantage), NVIDIA-NeMo/RL#1516.
Cause: data or forward_arithmetic (in the loss, outside of the model), step 110. Right: loss / outside / target / std. Wrong: learning rate, mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [110, 110], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "GradScaler", "checkpoint"],
          "right": "loss|[Tt]arget|label|outside|advantage|reward|std|weights of the loss"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
GROUP, PROMPTS, LENGTH, V = 8, 8, 3, 10

class Policy(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.tok, self.rnn, self.head = nn.Embedding(V + 1, d), nn.GRU(d, d, batch_first=True), nn.Linear(d, V)
    def forward(self, ids):
        return self.head(self.rnn(self.tok(ids))[0])

policy = Policy()
opt = torch.optim.AdamW(policy.parameters(), 1e-3)
watch = rangewatch.attach(policy, opt)
for step in range(200):
    prompt = torch.randint(0, V, (PROMPTS, 2)).repeat_interleave(GROUP, 0)
    ids = torch.cat([prompt, torch.full((len(prompt), 1), V)], 1)
    with torch.no_grad():
        for _ in range(LENGTH):
            ids = torch.cat([ids, torch.multinomial(policy(ids)[:, -1].softmax(-1), 1)], 1)
    answer = ids[:, 3:]
    reward = (answer == (prompt.sum(1, keepdim=True) % V)).float().mean(1).view(PROMPTS, GROUP)
    answered = torch.ones_like(reward, dtype=torch.bool)
    if step == 110:
        answered[2, 1:] = False
    advantage = torch.zeros_like(reward)
    for i in range(PROMPTS):
        r = reward[i][answered[i]]
        advantage[i, answered[i]] = (r - r.mean()) / (r.std() + 1e-4)
    logp = F.log_softmax(policy(ids[:, :-1])[:, 2:], -1).gather(-1, answer[..., None]).squeeze(-1)
    ratio = (logp - logp.detach()).exp()
    adv = advantage.view(-1, 1)
    loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
    opt.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    opt.step()
    watch.log(loss=loss.item(), reward=reward.mean().item())
    if step % 10 == 0:
        print(step, loss.item(), reward.mean().item())
