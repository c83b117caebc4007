"""An actor and critic for a board game, illegal moves masked by adding log(mask), so -inf, before log_softmax (so that -inf in the output is daily
bread). FAULT at step 170: in one state of the batch the player has no legal move at all; log_softmax of only -inf is NaN, and from the loss all
weights become NaN.
Without Rangewatch: mean reward -0.05 to 0.70 at step 169; loss -0.23 at step 169, NaN at step 170 and ever after; reward then 0.05 (random moves).
Report: Stable-Baselines-Team/stable-baselines3-contrib#221 (NaN in MaskablePPO), entity-neural-network/incubator#186 (mask prevents all actions).
Cause: mask (or data, or forward_arithmetic). Step: 170. Right: mask / no legal action / a pass move. Wrong: learning rate, GradScaler, bfloat16."""
EXPECT = {"cause": ["mask", "data", "forward_arithmetic"], "step": [170, 171], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "bfloat16"],
          "right": "mask|-inf|legal|softmax|no valid|every (entry|position|key)|all (entries|positions)|row"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(701); torch.set_num_threads(1)
MOVES = 12
worth = torch.randn(20, MOVES)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.torso = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.policy = nn.Linear(64, MOVES)
        self.value = nn.Linear(64, 1)

    def forward(self, state, legal):
        h = self.torso(state)
        logits = self.policy(h) + legal.float().log()  # log 1 = 0, log 0 = -inf
        return F.log_softmax(logits, -1), self.value(h).squeeze(-1)


model = ActorCritic()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    state = torch.randn(64, 20)
    legal = torch.rand(64, MOVES) < 0.5
    legal[:, 0] |= ~legal.any(1)  # the usual state has a move
    if step == 170:
        legal[5] = False  # stalemate: nobody thought of it
    logp, value = model(state, legal)
    with torch.no_grad():
        gumbel = -(-torch.rand_like(logp).clamp_min(1e-9).log()).log()
        action = (logp + gumbel).argmax(1)
        reward = (state @ worth).tanh().gather(1, action[:, None]).squeeze(1)
    chosen = logp.gather(1, action[:, None]).squeeze(1)
    advantage = reward - value
    loss = -(advantage.detach() * chosen).mean() + 0.5 * advantage.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    if step % 40 == 0 or 168 < step < 173:
        print(step, loss.item(), reward.mean().item(), flush=True)
handle.detach()
