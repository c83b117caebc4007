"""DQN plays Catch (a ball falls on a 7 x 5 board, the paddle moves): replay, target network, SGD with momentum as in an old supervised recipe.
FAULT at step 0: natural. The step is far too long (lr=0.1 with rewards of +-10): within some dozen steps a jolt pushes the biases of the second layer so low that its ReLUs are zero for every board and never come back; Q is the head's bias.
Without Rangewatch: all 50-odd live units of fc2 are gone by step 40 (0 alive to the end); caught 0.36 falls to 0.18, td loss stays 7 to 26. With lr=0.003 0.64 are caught at step 399 and 60 units live.
Cause: dead_units (learning_rate made them so). Step: 0 to 150. Right: dead ReLU / lower lr. Wrong: GradScaler, attention mask, raise the learning rate."""
EXPECT = {"cause": ["dead_units", "learning_rate"], "step": [0, 150], "place": None, "rank": None,
          "right": r"(?i)dead|ReLU|never (fire|active)|(lower|reduce|smaller).{0,30}(learning rate|lr)",
          "wrong": ["GradScaler", "(?i)attention mask", r"(?i)raise the learning rate", r"(?i)call .{0,20}zero_grad"]}
import copy
import random
from collections import deque
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

random.seed(4), torch.manual_seed(4), torch.set_num_threads(1)
H, W = 7, 5


class Catch:
    def reset(self):
        self.ball, self.row, self.paddle = random.randrange(W), 0, W // 2
        return self.board()

    def board(self):
        b = torch.zeros(H, W)
        b[self.row, self.ball] = 1
        b[H - 1, self.paddle] = 1
        return b.flatten()

    def move(self, action):
        self.paddle = min(W - 1, max(0, self.paddle + action - 1))
        self.row += 1
        done = self.row == H - 1
        return self.board(), (10.0 if self.paddle == self.ball else -10.0) if done else 0.0, done


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.q_values = nn.Linear(H * W, 64), nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, s):
        return self.q_values(F.relu(self.fc2(F.relu(self.fc1(s)))))


policy = QNet()
target = copy.deepcopy(policy)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1, momentum=0.9)
handle = rangewatch.attach(policy, optimizer)
env, buffer, results = Catch(), deque(maxlen=5000), deque(maxlen=100)
state = env.reset()
for step in range(400):
    for _ in range(4 if step else 200):
        with torch.no_grad():
            action = random.randrange(3) if random.random() < max(0.1, 1 - step / 150) else policy(state[None]).argmax().item()
        new, reward, done = env.move(action)
        buffer.append((state, action, reward, new, float(done)))
        if done:
            results.append(reward > 0)
        state = env.reset() if done else new
    s, a, r, n, d = zip(*random.sample(buffer, 64))
    s, n, a, r, d = torch.stack(s), torch.stack(n), torch.tensor(a), torch.tensor(r), torch.tensor(d)
    with torch.no_grad():
        y = r + 0.95 * target(n).max(1).values * (1 - d)
    q = policy(s)
    loss = F.mse_loss(q.gather(1, a[:, None]).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0:
        target.load_state_dict(policy.state_dict())
    if step % 40 == 0 or step < 12 or step == 399:
        alive = (F.relu(policy.fc2(F.relu(policy.fc1(s)))) > 0).any(0).sum().item()
        print(step, f"td {loss.item():.3f} caught {sum(results) / len(results):.2f} fc2 alive {alive}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
